"""What dynamic tables read: versions of it, and mirrors of registered tables."""
