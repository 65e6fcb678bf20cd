"""How messages become rows: types, the mapping, filters, and inference from samples."""
