"""What an application costs while nobody asks anything of it."""
