"""Shows that nothing acknowledged is ever lost: faults, and the promise held against each."""
