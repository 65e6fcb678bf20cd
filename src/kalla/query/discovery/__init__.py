"""Finds the addresses of query workers: a list, a DNS name, Kubernetes or ECS."""
