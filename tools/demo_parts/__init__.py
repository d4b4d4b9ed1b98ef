"""Parts of tools/demo."""
