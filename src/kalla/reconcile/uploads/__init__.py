"""Files that users send: in `storage.uploads` for a time, or for good once they are a source."""
