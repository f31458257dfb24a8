"""The subcommands of `pockfarm`, by what they need: this machine's farm, no farm at all, or any farm."""
