"""`make cluster-lab`: real Kubernetes and KEDA drive real Kalla processes here."""
