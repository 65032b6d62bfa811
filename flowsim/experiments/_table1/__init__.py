"""Attention and prediction of transformers on real texts (paper, section 7)."""
