CREATE TABLE agents_seen (
    node character varying(200) NOT NULL,
    instance character varying(64) NOT NULL,
    seen_ns bigint NOT NULL
);
CREATE TABLE answered_runs (
    id bigint NOT NULL,
    pair bigint NOT NULL,
    start_ns bigint NOT NULL,
    end_ns bigint NOT NULL,
    answered_ns bigint NOT NULL,
    follows boolean NOT NULL,
    sent bigint NOT NULL,
    received bigint NOT NULL,
    flows integer NOT NULL,
    size_bytes integer NOT NULL,
    lost bigint,
    raw_mean_ns double precision,
    least_raw_ns bigint,
    raw_p99_ns double precision,
    clock bytea NOT NULL,
    data bytea NOT NULL,
    reason text
);
CREATE SEQUENCE answered_runs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE answered_runs_id_seq OWNED BY answered_runs.id;
CREATE TABLE assignments (
    node character varying(200) NOT NULL,
    stream character varying(200) NOT NULL,
    configuration text,
    version bigint NOT NULL
);
CREATE TABLE collections (
    id bigint NOT NULL,
    node character varying(200) NOT NULL,
    name character varying(200) NOT NULL,
    created_ns bigint NOT NULL,
    begin_ns bigint,
    close_ns bigint,
    period_ns bigint,
    newest_ns bigint,
    longest_ns bigint NOT NULL,
    may_be_exact boolean NOT NULL,
    packets bigint NOT NULL,
    duplicates bigint NOT NULL,
    conflicts bigint NOT NULL,
    late bigint NOT NULL,
    refused bigint NOT NULL,
    windows bigint NOT NULL,
    solved bigint NOT NULL,
    left_out bigint NOT NULL,
    contradictions bigint NOT NULL,
    unsolved bigint NOT NULL,
    set_aside bigint DEFAULT '0'::bigint NOT NULL,
    halvings bigint DEFAULT '0'::bigint NOT NULL
);
CREATE SEQUENCE collections_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE collections_id_seq OWNED BY collections.id;
CREATE TABLE epoch_cuts (
    epoch bigint NOT NULL,
    node character varying(200) NOT NULL,
    stream character varying(200) NOT NULL,
    sequence bigint NOT NULL,
    first_ns bigint,
    last_ns bigint,
    recorded bigint NOT NULL,
    size_bytes integer NOT NULL,
    begins bigint,
    ends bigint,
    sequences bigint NOT NULL,
    continues boolean NOT NULL,
    missed bigint NOT NULL,
    synchronised boolean,
    clock_error_ns bigint,
    clock_offset_ns bigint
);
CREATE TABLE epochs (
    id bigint NOT NULL,
    node character varying(200) NOT NULL,
    stream character varying(200) NOT NULL,
    sequence bigint NOT NULL,
    first_ns bigint,
    last_ns bigint,
    recorded bigint NOT NULL,
    received_ns bigint NOT NULL,
    size_bytes integer NOT NULL,
    data bytea NOT NULL
);
CREATE SEQUENCE epochs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE epochs_id_seq OWNED BY epochs.id;
CREATE TABLE epochs_set_aside (
    epoch bigint NOT NULL,
    reason text NOT NULL,
    since_ns bigint NOT NULL
);
CREATE TABLE fleet_segments (
    name character varying(200) NOT NULL,
    from_node character varying(200) NOT NULL,
    from_interface character varying(20) NOT NULL,
    from_direction character varying(4) NOT NULL,
    to_node character varying(200) NOT NULL,
    to_interface character varying(20) NOT NULL,
    to_direction character varying(4) NOT NULL,
    filter character varying(1000) NOT NULL,
    epoch_ns bigint NOT NULL,
    memory_bytes bigint,
    error double precision,
    confidence double precision,
    both_directions boolean NOT NULL,
    planned_bytes bigint NOT NULL,
    created_ns bigint NOT NULL
);
CREATE TABLE instances (
    id bigint NOT NULL,
    key character varying(512) NOT NULL
);
CREATE TABLE node_tags (
    node character varying(200) NOT NULL,
    tag character varying(200) NOT NULL
);
CREATE TABLE nodes (
    name character varying(200) NOT NULL,
    first_seen_ns bigint NOT NULL,
    last_seen_ns bigint NOT NULL
);
CREATE TABLE point_recordings (
    node character varying(200) NOT NULL,
    interface character varying(20) NOT NULL,
    direction character varying(4) NOT NULL,
    filter character varying(1000) NOT NULL,
    generation integer NOT NULL,
    since_ns bigint NOT NULL,
    superseded_ns bigint,
    until_ns bigint
);
CREATE TABLE schema_version (
    version integer NOT NULL
);
CREATE SEQUENCE schema_version_version_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE schema_version_version_seq OWNED BY schema_version.version;
CREATE TABLE segment_generations (
    number bigint NOT NULL,
    plan text NOT NULL,
    memory_bytes bigint NOT NULL,
    epoch_ns bigint NOT NULL,
    since_ns bigint NOT NULL
);
CREATE SEQUENCE segment_generations_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE segment_generations_number_seq OWNED BY segment_generations.number;
CREATE TABLE segment_measurements (
    id bigint NOT NULL,
    node character varying(200) NOT NULL,
    segment text NOT NULL,
    dscp integer NOT NULL,
    method character varying(200) NOT NULL,
    start_ns bigint NOT NULL,
    end_ns bigint NOT NULL,
    "row" text NOT NULL
);
CREATE SEQUENCE segment_measurements_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE segment_measurements_id_seq OWNED BY segment_measurements.id;
CREATE TABLE sightings (
    node character varying(200) NOT NULL,
    stream character varying(200) NOT NULL,
    instance bigint NOT NULL,
    first_ns bigint NOT NULL,
    last_ns bigint NOT NULL
);
CREATE TABLE sink_answers (
    packet bigint NOT NULL,
    data bytea NOT NULL
);
CREATE TABLE sink_late (
    packet bigint NOT NULL,
    collection bigint NOT NULL,
    t0_ns bigint NOT NULL,
    is_due boolean NOT NULL
);
CREATE TABLE sink_packets (
    id bigint NOT NULL,
    collection bigint NOT NULL,
    origin bigint NOT NULL,
    sequence bigint NOT NULL,
    t0_ns bigint NOT NULL,
    sink_ns bigint NOT NULL,
    sum_ns bigint NOT NULL,
    path bytea NOT NULL,
    direct_ns bigint
);
CREATE SEQUENCE sink_packets_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE sink_packets_id_seq OWNED BY sink_packets.id;
CREATE TABLE sink_received (
    received_ns bigint NOT NULL,
    last_packet bigint NOT NULL
);
CREATE TABLE sink_set_aside (
    packet bigint NOT NULL,
    "window" bigint NOT NULL
);
CREATE TABLE sink_set_aside_windows (
    id bigint NOT NULL,
    collection bigint NOT NULL,
    begin_ns bigint NOT NULL,
    end_ns bigint NOT NULL,
    packets bigint NOT NULL,
    reason character varying(300) NOT NULL
);
CREATE SEQUENCE sink_set_aside_windows_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE sink_set_aside_windows_id_seq OWNED BY sink_set_aside_windows.id;
CREATE TABLE stream_owners (
    node character varying(200) NOT NULL,
    stream character varying(200) NOT NULL,
    instance character varying(64) NOT NULL,
    floor bigint,
    released_ns bigint
);
CREATE TABLE stream_pairs (
    id bigint NOT NULL,
    from_node character varying(200) NOT NULL,
    from_stream character varying(200) NOT NULL,
    to_node character varying(200) NOT NULL,
    to_stream character varying(200) NOT NULL,
    sent_until bigint NOT NULL,
    received_until bigint NOT NULL
);
CREATE SEQUENCE stream_pairs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE stream_pairs_id_seq OWNED BY stream_pairs.id;
CREATE TABLE stream_states (
    node character varying(200) NOT NULL,
    stream character varying(200) NOT NULL,
    state character varying(20) NOT NULL,
    since_ns bigint NOT NULL,
    reason text
);
CREATE TABLE streams (
    node character varying(200) NOT NULL,
    name character varying(200) NOT NULL,
    metric character varying(200) NOT NULL,
    unit character varying(40) NOT NULL,
    granularity character varying(40) NOT NULL,
    values_are character varying(20)
);
CREATE TABLE tokens (
    id character varying(16) NOT NULL,
    name character varying(200) NOT NULL,
    role character varying(10) NOT NULL,
    node character varying(200),
    digest bytea NOT NULL,
    created_ns bigint NOT NULL,
    revoked_ns bigint
);
CREATE TABLE unlisted_epochs (
    epoch bigint NOT NULL,
    listed integer NOT NULL
);
ALTER TABLE ONLY answered_runs ALTER COLUMN id SET DEFAULT nextval('answered_runs_id_seq'::regclass);
ALTER TABLE ONLY collections ALTER COLUMN id SET DEFAULT nextval('collections_id_seq'::regclass);
ALTER TABLE ONLY epochs ALTER COLUMN id SET DEFAULT nextval('epochs_id_seq'::regclass);
ALTER TABLE ONLY schema_version ALTER COLUMN version SET DEFAULT nextval('schema_version_version_seq'::regclass);
ALTER TABLE ONLY segment_generations ALTER COLUMN number SET DEFAULT nextval('segment_generations_number_seq'::regclass);
ALTER TABLE ONLY segment_measurements ALTER COLUMN id SET DEFAULT nextval('segment_measurements_id_seq'::regclass);
ALTER TABLE ONLY sink_packets ALTER COLUMN id SET DEFAULT nextval('sink_packets_id_seq'::regclass);
ALTER TABLE ONLY sink_set_aside_windows ALTER COLUMN id SET DEFAULT nextval('sink_set_aside_windows_id_seq'::regclass);
ALTER TABLE ONLY stream_pairs ALTER COLUMN id SET DEFAULT nextval('stream_pairs_id_seq'::regclass);
INSERT INTO answered_runs VALUES (1, 1, 1790000000000000000, 1790000001000000000, 1790172800000000000, false, 5, 4, 1, 10, 1, 1.5, 1, 2, '\x63', '\x64', NULL);
INSERT INTO epoch_cuts VALUES (9, 'n', 'point:x:g1', 0, 1790000000000000005, 1790000000000000505, 2, 105, -1, 5, 1, false, 0, NULL, NULL, NULL);
INSERT INTO epochs VALUES (1, 'n', 'disk', 0, 1790000000000000000, 1790000000000000500, 2, 1790000001000000000, 86, '\x8301584d896c6275636b65745f6172726179a2616e08616d02616e646469736b00821b18d75b8423f300001901f402500000000000000000000000000400000082470300000007646447030000000973681a2bc4f8b3');
INSERT INTO epochs VALUES (2, 'n', 'disk', 1, 1790000060000000000, 1790000060000000500, 2, 1790000061000000000, 86, '\x8301584d896c6275636b65745f6172726179a2616e08616d02616e646469736b01821b18d75b921c3a58001901f402500000000000000000000000000400000082470300000007646447030000000973681a81658743');
INSERT INTO epochs VALUES (3, 'n', 'disk', 2, 1790000120000000000, 1790000120000000500, 2, 1790000121000000000, 86, '\x8301584d896c6275636b65745f6172726179a2616e08616d02616e646469736b02821b18d75ba01481b0001901f402500000000000000000000000000400000082470300000007646447030000000973681aa4024f55');
INSERT INTO epochs VALUES (4, 'n', 'disk', 3, 1790000180000000000, 1790000180000000500, 2, 1790000181000000000, 86, '\x8301584d896c6275636b65745f6172726179a2616e08616d02616e646469736b03821b18d75bae0cc908001901f402500000000000000000000000000400000082470300000007646447030000000973681ae1ca5ed2');
INSERT INTO epochs VALUES (5, 'n', 'disk', 4, 1790000240000000000, 1790000240000000500, 2, 1790000241000000000, 86, '\x8301584d896c6275636b65745f6172726179a2616e08616d02616e646469736b04821b18d75bbc051060001901f402500000000000000000000000000400000082470300000007646447030000000973681a1ec8be2d');
INSERT INTO epochs VALUES (6, 'n', 'disk', 5, 1790000300000000000, 1790000300000000500, 2, 1790000301000000000, 86, '\x8301584d896c6275636b65745f6172726179a2616e08616d02616e646469736b05821b18d75bc9fd57b8001901f402500000000000000000000000000400000082470300000007646447030000000973681a2fa5d10b');
INSERT INTO epochs VALUES (7, 'n', 'disk', 9, 1790000540000000000, 1790000540000000500, 2, 1790000541000000000, 86, '\x8301584d896c6275636b65745f6172726179a2616e08616d02616e646469736b09821b18d75c01de7518001901f402500000000000000000000000000400000082470300000007646447030000000973681adee39eb0');
INSERT INTO epochs VALUES (8, 'n', 'disk', 10, 1000, 1000, 1, 1790086400000000000, 51, '\x8301582a896c6275636b65745f6172726179a3616e03616d01616205616e646469736b0a821903e8000142ffff801a05b2b82e');
INSERT INTO epochs VALUES (9, 'n', 'point:x:g1', 0, 1790000000000000005, 1790000000000000505, 2, 1790172800000000000, 105, '\x830258608a6c6275636b65745f6172726179a2616e08616d02616e6a706f696e743a783a673100821b18d75b8423f300051901f4024e78016360400016201300002000058247030000000764644703000000097368861bffffffffffffffff0501f400f61a4434051e');
INSERT INTO epochs VALUES (10, 'n', 'ahead', 0, 1790864000000000000, 1790864000000000500, 2, 1790000000000000000, 87, '\x8301584e896c6275636b65745f6172726179a2616e08616d02616e65616865616400821b18da6d51d10900001901f402500000000000000000000000000400000082470300000007646447030000000973681add73beed');
INSERT INTO epochs_set_aside VALUES (8, 'buckets.sum: bits after the last counter are set', 1794886533271258025);
INSERT INTO instances VALUES (1506154196448680173, 'dd[7]');
INSERT INTO instances VALUES (-2350206773541809231, 'sh[9]');
INSERT INTO nodes VALUES ('n', 1794886533239070652, 1790000000000000000);
INSERT INTO schema_version VALUES (1);
INSERT INTO sightings VALUES ('n', 'disk', 1506154196448680173, 1790000000000000000, 1790000540000000500);
INSERT INTO sightings VALUES ('n', 'disk', -2350206773541809231, 1790000000000000000, 1790000540000000500);
INSERT INTO sightings VALUES ('n', 'point:x:g1', 1506154196448680173, 1790000000000000005, 1790000000000000505);
INSERT INTO sightings VALUES ('n', 'point:x:g1', -2350206773541809231, 1790000000000000005, 1790000000000000505);
INSERT INTO sightings VALUES ('n', 'ahead', 1506154196448680173, 1790864000000000000, 1790864000000000500);
INSERT INTO sightings VALUES ('n', 'ahead', -2350206773541809231, 1790864000000000000, 1790864000000000500);
INSERT INTO stream_pairs VALUES (1, 'n', 'point:x:g1', 'm', 'point:y:g1', 3, 4);
INSERT INTO streams VALUES ('n', 'disk', 'disk_io', 'operations', 'process', 'increments');
INSERT INTO tokens VALUES ('a557e236', 'first', 'admin', NULL, '\x587d01a1813f327b1a543b02a7d758d23b9a680acf56511dac7cd3b309a1c3d9', 1794886533284540284, NULL);
SELECT pg_catalog.setval('answered_runs_id_seq', 1, true);
SELECT pg_catalog.setval('collections_id_seq', 1, false);
SELECT pg_catalog.setval('epochs_id_seq', 10, true);
SELECT pg_catalog.setval('schema_version_version_seq', 1, false);
SELECT pg_catalog.setval('segment_generations_number_seq', 1, false);
SELECT pg_catalog.setval('segment_measurements_id_seq', 1, false);
SELECT pg_catalog.setval('sink_packets_id_seq', 1, false);
SELECT pg_catalog.setval('sink_set_aside_windows_id_seq', 1, false);
SELECT pg_catalog.setval('stream_pairs_id_seq', 1, true);
ALTER TABLE ONLY agents_seen
    ADD CONSTRAINT agents_seen_pkey PRIMARY KEY (node, instance);
ALTER TABLE ONLY answered_runs
    ADD CONSTRAINT answered_runs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY assignments
    ADD CONSTRAINT assignments_pkey PRIMARY KEY (node, stream);
ALTER TABLE ONLY collections
    ADD CONSTRAINT collection_identity UNIQUE (node, name);
ALTER TABLE ONLY collections
    ADD CONSTRAINT collections_pkey PRIMARY KEY (id);
ALTER TABLE ONLY epoch_cuts
    ADD CONSTRAINT epoch_cuts_pkey PRIMARY KEY (epoch);
ALTER TABLE ONLY epochs
    ADD CONSTRAINT epoch_identity UNIQUE (node, stream, sequence);
ALTER TABLE ONLY epochs
    ADD CONSTRAINT epochs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY epochs_set_aside
    ADD CONSTRAINT epochs_set_aside_pkey PRIMARY KEY (epoch);
ALTER TABLE ONLY fleet_segments
    ADD CONSTRAINT fleet_segments_pkey PRIMARY KEY (name);
ALTER TABLE ONLY instances
    ADD CONSTRAINT instances_pkey PRIMARY KEY (id);
ALTER TABLE ONLY segment_measurements
    ADD CONSTRAINT measurement_identity UNIQUE (node, segment, dscp, method, start_ns);
ALTER TABLE ONLY node_tags
    ADD CONSTRAINT node_tags_pkey PRIMARY KEY (node, tag);
ALTER TABLE ONLY nodes
    ADD CONSTRAINT nodes_pkey PRIMARY KEY (name);
ALTER TABLE ONLY sink_packets
    ADD CONSTRAINT packet_identity UNIQUE (collection, origin, sequence, t0_ns);
ALTER TABLE ONLY stream_pairs
    ADD CONSTRAINT pair_identity UNIQUE (from_node, from_stream, to_node, to_stream);
ALTER TABLE ONLY point_recordings
    ADD CONSTRAINT point_recordings_pkey PRIMARY KEY (node, interface, direction, filter, generation);
ALTER TABLE ONLY schema_version
    ADD CONSTRAINT schema_version_pkey PRIMARY KEY (version);
ALTER TABLE ONLY segment_generations
    ADD CONSTRAINT segment_generations_pkey PRIMARY KEY (number);
ALTER TABLE ONLY segment_measurements
    ADD CONSTRAINT segment_measurements_pkey PRIMARY KEY (id);
ALTER TABLE ONLY sightings
    ADD CONSTRAINT sightings_pkey PRIMARY KEY (node, stream, instance);
ALTER TABLE ONLY sink_answers
    ADD CONSTRAINT sink_answers_pkey PRIMARY KEY (packet);
ALTER TABLE ONLY sink_late
    ADD CONSTRAINT sink_late_pkey PRIMARY KEY (packet);
ALTER TABLE ONLY sink_packets
    ADD CONSTRAINT sink_packets_pkey PRIMARY KEY (id);
ALTER TABLE ONLY sink_received
    ADD CONSTRAINT sink_received_pkey PRIMARY KEY (received_ns);
ALTER TABLE ONLY sink_set_aside
    ADD CONSTRAINT sink_set_aside_pkey PRIMARY KEY (packet);
ALTER TABLE ONLY sink_set_aside_windows
    ADD CONSTRAINT sink_set_aside_windows_pkey PRIMARY KEY (id);
ALTER TABLE ONLY stream_owners
    ADD CONSTRAINT stream_owners_pkey PRIMARY KEY (node, stream);
ALTER TABLE ONLY stream_pairs
    ADD CONSTRAINT stream_pairs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY stream_states
    ADD CONSTRAINT stream_states_pkey PRIMARY KEY (node, stream);
ALTER TABLE ONLY streams
    ADD CONSTRAINT streams_pkey PRIMARY KEY (node, name);
ALTER TABLE ONLY tokens
    ADD CONSTRAINT tokens_pkey PRIMARY KEY (id);
ALTER TABLE ONLY unlisted_epochs
    ADD CONSTRAINT unlisted_epochs_pkey PRIMARY KEY (epoch);
CREATE INDEX cuts_by_stream ON epoch_cuts USING btree (node, stream, sequence);
CREATE INDEX epochs_by_time ON epochs USING btree (node, stream, last_ns);
CREATE INDEX ix_fleet_segments_from_node ON fleet_segments USING btree (from_node);
CREATE INDEX ix_fleet_segments_to_node ON fleet_segments USING btree (to_node);
CREATE INDEX ix_point_recordings_until_ns ON point_recordings USING btree (until_ns);
CREATE INDEX ix_stream_states_state ON stream_states USING btree (state);
CREATE INDEX measurements_by_time ON segment_measurements USING btree (start_ns);
CREATE INDEX node_tags_by_tag ON node_tags USING btree (tag);
CREATE INDEX pairs_back ON stream_pairs USING btree (to_node, from_node);
CREATE INDEX run_totals ON answered_runs USING btree (end_ns, pair, start_ns, sent, received, lost, raw_mean_ns, least_raw_ns, raw_p99_ns);
CREATE INDEX runs_by_time ON answered_runs USING btree (pair, end_ns);
CREATE INDEX sink_late_by_time ON sink_late USING btree (collection, t0_ns);
CREATE INDEX sink_packets_by_time ON sink_packets USING btree (collection, t0_ns);
CREATE INDEX sink_packets_direct ON sink_packets USING btree (collection, direct_ns);
CREATE INDEX sink_set_aside_by_collection ON sink_set_aside_windows USING btree (collection);
CREATE INDEX sink_set_aside_by_window ON sink_set_aside USING btree ("window");
