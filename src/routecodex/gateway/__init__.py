"""From a decoded request to an answered client.

ask           Ask, Client, Record: what comes in, whom we answer, what is remembered of it
gateway       Gateway: the object that holds the parts;  build  from a configuration to the parts
course        whose request it is, what was said to the gateway, what it asks for
  identity    which conversation a request belongs to;  sessions  what is set for it, in the store
  steering    instructions: heard, applied, taken out;  message_files  texts they name
  orders      what an operator has set;  own_words  what the gateway says by itself
tries         the attempts at a request;  health  which keys can be used;  draws  whose turn it is in a pool
exchange      one attempt: to one target, and its answer to the client;  heads  the headers of an answer
  lane        a target made ready to send to;  sources  where an answer comes from
  keep_alive  comments for streams on which nothing happens
rounds        a turn with server tools;  toolbox  which tools a request needs;  clockwork  the clock
  opened      an answer as events, read as far as its first content;  outlet  where they leave for the client
  own_calls   what the gateway asks of models by itself;  sights, searching  who sees and searches for others
chains        conversations of the Responses API;  history  their memory, in the store
memory        the thoughts behind tool calls;  makers  which provider made which signature
counting, embeddings, listing, explain, ids;  followed, health_row, user  what others read or tell of them
"""
