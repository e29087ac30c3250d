"""ServiceDesk: a back office on a real database, a written policy, typed tools and a simulated customer."""
