"""Every number and verdict about losses, computed from the runs on record: see claims.yaml and docs/design/0012-claims.md."""
