"""The inputs of dynamic tables: their versions, and mirrors of registered tables."""
