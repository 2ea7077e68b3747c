-- Nothing: what PostgreSQL needs here, a store with one writer does not.
SELECT 1;
