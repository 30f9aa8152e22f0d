"""The tests mirror cvexp/."""
