"""Bytes as exact functions of batch and sequence: polynomials, what rounds them, and which of many is the largest."""
