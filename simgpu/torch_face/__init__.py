"""torch.cuda, torch.accelerator, pynvml and other attributes, as they are while a simulated GPU is on."""
