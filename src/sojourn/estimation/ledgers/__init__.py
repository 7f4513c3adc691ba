"""What two receipts and the sender's ledger tell: which packets were lost, and every flow's exact mean and loss."""
