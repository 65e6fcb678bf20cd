"""What an API process and a query worker say to each other: control messages and artifacts."""
