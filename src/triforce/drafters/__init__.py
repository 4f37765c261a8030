"""What proposes tokens, a file each; `triforce.speculative` says what is asked of a drafter."""
