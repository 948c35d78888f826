"""Replaces torch.cuda, torch.accelerator, pynvml and other attributes while a simulated GPU is on."""
