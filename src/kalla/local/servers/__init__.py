"""One module for each embedded server, and the Java and jars that two of them need."""
