-- Deletes forgotten calls from the disk. Questions do not find them from the moment at which `forgotten` has them; run this once a day, so
-- that their words are gone, too, and records of them that came later.

INSERT INTO forgotten
SELECT calls.conversation_id
FROM calls
INNER JOIN (SELECT tenant, max(at_ms) AS at_ms FROM forgotten_tenant GROUP BY tenant) AS gone ON calls."labels.tenant" = gone.tenant
WHERE calls.first_known_ms < gone.at_ms;

ALTER TABLE calls DELETE WHERE conversation_id IN (SELECT conversation_id FROM forgotten) SETTINGS mutations_sync = 1;
ALTER TABLE turns DELETE WHERE conversation_id IN (SELECT conversation_id FROM forgotten) SETTINGS mutations_sync = 1;
ALTER TABLE goal_sets DELETE WHERE conversation_id IN (SELECT conversation_id FROM forgotten) SETTINGS mutations_sync = 1;
ALTER TABLE words DELETE WHERE conversation_id IN (SELECT conversation_id FROM forgotten) SETTINGS mutations_sync = 1;
ALTER TABLE own DELETE WHERE conversation_id IN (SELECT conversation_id FROM forgotten) SETTINGS mutations_sync = 1;
ALTER TABLE transcript DELETE WHERE conversation_id IN (SELECT conversation_id FROM forgotten) SETTINGS mutations_sync = 1;
ALTER TABLE annotation DELETE WHERE conversation_id IN (SELECT conversation_id FROM forgotten) SETTINGS mutations_sync = 1;
