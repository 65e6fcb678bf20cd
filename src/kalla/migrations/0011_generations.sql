-- Where the current generation of a partition begins: a seek starts another, and only its own
-- offsets can be compared with Kafka.
ALTER TABLE kalla.ledger ADD COLUMN first_offset bigint;
UPDATE kalla.ledger SET first_offset = 0;
ALTER TABLE kalla.ledger ALTER COLUMN first_offset SET NOT NULL;
