"""How many workers each role needs: demand, policy, decisions, and what they lead to."""
