"""The reference pages that are made from declarations in code: `make pages` writes them."""
