"""The torch.cuda, and the tensors' methods, that answer for the virtual card."""
