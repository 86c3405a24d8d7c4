"""What each scheduler means on the host, inside a job and outside it; `registry` has all of them."""
