-- Deletes forgotten calls from the disk. Questions do not find them from the moment at which `forgotten` has them; run this once a day, so
-- that their words are gone, too, and records of them that came later.

INSERT INTO forgotten
SELECT call.conversation_id
FROM call
INNER JOIN (SELECT tenant, max(at_ms) AS at_ms FROM forgotten_tenant GROUP BY tenant) AS gone ON call.tenant = gone.tenant
WHERE call.started_ms < gone.at_ms;

ALTER TABLE score DELETE WHERE conversation_id IN (SELECT conversation_id FROM forgotten) SETTINGS mutations_sync = 1;
ALTER TABLE call DELETE WHERE conversation_id IN (SELECT conversation_id FROM forgotten) SETTINGS mutations_sync = 1;
ALTER TABLE transcript DELETE WHERE conversation_id IN (SELECT conversation_id FROM forgotten) SETTINGS mutations_sync = 1;
ALTER TABLE annotation DELETE WHERE conversation_id IN (SELECT conversation_id FROM forgotten) SETTINGS mutations_sync = 1;
ALTER TABLE changed DELETE WHERE conversation_id IN (SELECT conversation_id FROM forgotten) SETTINGS mutations_sync = 1;
