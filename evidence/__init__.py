"""Every number and verdict about losses, computed from the runs on record: docs/design/0012-claims.md."""
