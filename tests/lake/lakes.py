"""What the stores of these tests hold."""

CLAIMS = [f"Claim {number} of “tea” and coffee 🙂." for number in range(6)]
