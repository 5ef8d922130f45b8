-- ClickHouse reads the topics itself. Run it after tables.sql, in the same database, with your brokers in place of kafka:9092. It reads
-- committed records only. TLS and passwords are part of the server's configuration, under <kafka>.
-- A restart reads some records again; a revision counts once however often it comes.

CREATE TABLE score_topic (value String)
ENGINE = Kafka
SETTINGS kafka_broker_list = 'kafka:9092', kafka_topic_list = 'scores', kafka_group_name = 'callgauge-clickhouse',
    kafka_format = 'RawBLOB', kafka_flush_interval_ms = 2000;

CREATE TABLE words_topic (value String)
ENGINE = Kafka
SETTINGS kafka_broker_list = 'kafka:9092', kafka_topic_list = 'words', kafka_group_name = 'callgauge-clickhouse',
    kafka_format = 'RawBLOB', kafka_flush_interval_ms = 2000;

CREATE TABLE own_topic (value String)
ENGINE = Kafka
SETTINGS kafka_broker_list = 'kafka:9092', kafka_topic_list = 'scores.own', kafka_group_name = 'callgauge-clickhouse',
    kafka_format = 'RawBLOB', kafka_flush_interval_ms = 2000;

CREATE TABLE transcript_topic (value String)
ENGINE = Kafka
SETTINGS kafka_broker_list = 'kafka:9092', kafka_topic_list = 'transcripts', kafka_group_name = 'callgauge-clickhouse',
    kafka_format = 'RawBLOB', kafka_flush_interval_ms = 2000;

CREATE TABLE annotation_topic (value String)
ENGINE = Kafka
SETTINGS kafka_broker_list = 'kafka:9092', kafka_topic_list = 'annotations', kafka_group_name = 'callgauge-clickhouse',
    kafka_format = 'RawBLOB', kafka_flush_interval_ms = 2000;

CREATE MATERIALIZED VIEW score_from_topic TO score_in AS SELECT _key AS conversation_id, value FROM score_topic;
CREATE MATERIALIZED VIEW words_from_topic TO words_in AS SELECT _key AS conversation_id, value FROM words_topic;
CREATE MATERIALIZED VIEW own_from_topic TO own_in AS SELECT _key AS conversation_id, value FROM own_topic;
CREATE MATERIALIZED VIEW transcript_from_topic TO transcript_in AS SELECT _key AS conversation_id, value FROM transcript_topic;
CREATE MATERIALIZED VIEW annotation_from_topic TO annotation_in AS SELECT _key AS conversation_id, value FROM annotation_topic;
