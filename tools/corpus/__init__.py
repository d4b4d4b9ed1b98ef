"""From text to token files: the parts of tools/prepare."""
