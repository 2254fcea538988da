"""What `geonorm probe` and `geonorm simulate` do and leave."""
