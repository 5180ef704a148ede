"""Commands that run a model: generate, chat, translate, fill, classify, embed, score."""
