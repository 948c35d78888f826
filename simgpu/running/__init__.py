"""Any script on a simulated GPU: `simgpu run`, and what such a run gives the script that it would not have here."""
