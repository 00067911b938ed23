"""The formulas, and nothing else: tensors or plain numbers in and out. No configuration, I/O, logging, global random
numbers or distributed calls.

Shapes are in the names: B sequences, T response tokens (right-padded), C reward components, K candidates, V
vocabulary. Masks are True where a token was sampled by the policy and is trained on. The content of masked slots never
changes a result. Arithmetic is float32 or better, whatever the inputs are.
"""
