"""From text to token files: what tools/prepare is made of."""
