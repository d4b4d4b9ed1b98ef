"""Parts of tools/docs, and the check of prose in tools/lint."""
