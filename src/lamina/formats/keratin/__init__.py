"""The keratin format of document 003: segment logs, their indexes, the manifest, group state."""
