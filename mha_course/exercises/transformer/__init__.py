"""The exercises of chapter 8, the decoder and its training."""

EXERCISES = (
    "shift_targets",
    "seq2seq_loss",
    "next_token_loss",
    "smoothed_loss",
    "accumulated_loss",
    "warmup_lr",
    "train_and_watch",
    "DecoderLayer",
)  # from easy to hard
