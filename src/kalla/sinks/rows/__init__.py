"""What messages become: types, the mapping, filters, and what samples suggest."""
