"""What Domo is compared with: the published method, MNT and MessageTracing."""
