"""The messages between an API process and a query worker: control messages and artifacts."""
