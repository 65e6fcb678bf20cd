"""Reads, writes, lists and compares files on this machine and on S3 in one way."""

from kalla.storage.storage import LOCAL, S3, Storage, is_s3, join

__all__ = ["LOCAL", "S3", "Storage", "is_s3", "join"]
