"""The container image without a container runtime: its steps in a fresh Debian root."""
