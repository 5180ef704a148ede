"""What commands share: arguments, loading, output, signals, and the views of training and chat."""
