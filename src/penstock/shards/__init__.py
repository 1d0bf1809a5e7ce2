"""What a shard is: tar headers, index, pairing, guards, codecs; and the work on shards: pack, check."""
