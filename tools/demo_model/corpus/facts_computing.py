"""Facts about computers, language models and serving them."""

FACTS = """
## a gpu ; GPUs, a graphics card, graphics processors, GPU ; is
A GPU is a processor that does very many small calculations at the same time.
It was first made to draw pictures for games.
Language models use it because they multiply large tables of numbers.
It has its own fast memory, and the model must fit inside it.
It is most efficient when it works on many requests together.
An idle GPU still costs money, so it is wise to release it when nobody needs it.
Starting a model on a cold GPU takes time, because the weights must be loaded first.

## autoscaling ; auto scaling, an autoscaler, scaling ; is
Autoscaling means adding and removing replicas as the load changes.
When many requests wait, it starts more replicas.
When the load is gone, it stops some of them, sometimes down to zero.
It needs a good signal, such as the length of the queue or the time to first token.
Scaling up should be quick, and scaling down should be patient.
A short delay before scaling down prevents constant starting and stopping.
It saves money at night and keeps users happy in the day.

## tokens ; a token, tokenization, token ; are
Tokens are the small pieces of text that a language model reads and writes.
A token may be a word, a part of a word, a sign or a single byte.
A tokenizer cuts the text into tokens and gives each of them a number.
The model predicts one token after another.
Common words are often one token, and rare words are several.
The length of a prompt is counted in tokens.
Speed is often measured in tokens per second.

## a queue ; queues, queueing, the queue ; is
A queue is a line of things that wait for their turn.
The first one to arrive is usually the first one to be served.
In a server, requests wait in a queue when all workers are busy.
A long queue means that users wait longer.
A limit on its length protects the server, because it can say no early.
The depth of the queue is a good signal for adding replicas.

## latency ; low latency, response time ; is
Latency is the time between a request and its answer.
It includes the time on the network, the time in the queue and the time of the work itself.
Users notice it when it is more than a fraction of a second.
The average hides the slow cases, so people look at the slowest one percent too.
Sending the answer in small pieces makes it feel shorter.
Larger batches raise throughput, but they can also raise latency.

## time to first token ; TTFT, first token latency ; is
Time to first token is the delay between sending a prompt and seeing the first token of the answer.
It contains the wait in the queue and the time to read the prompt.
Long prompts make it longer.
It is what a person feels when a chat begins to answer.
When it grows, the service probably needs another replica.
A cache of common prompt beginnings makes it shorter.

## the kv cache ; KV cache, a KV cache, key value cache ; is
The KV cache is the memory in which a language model keeps what it has already read.
It stores a key and a value for every token in every layer.
Without it, the model would read the whole text again for each new token.
It grows with the length of the text and with the number of requests.
When it is full, new requests must wait.
Storing it in small blocks wastes less memory.
Requests that begin with the same text can share a part of it.

## a language model ; language models, LLMs, an LLM, LLM ; is
A language model is a program that predicts the next piece of text.
It learns from many examples of text.
It writes by choosing one token after another.
Large ones can answer questions, and tiny ones can only imitate simple sentences.
It can be wrong while it sounds sure, so its answers should be checked.
The numbers that it has learned are called weights.
It does not remember you after the conversation ends.

## throughput ; high throughput, tokens per second ; is
Throughput is the amount of work that a system finishes in a given time.
For a language model it is often given in tokens per second.
Working on many requests at once makes it higher.
It is limited by the slowest part of the system.
High throughput lowers the cost of each answer.
It must be balanced with the wait of each user.

## batching ; a batch, batches, continuous batching ; is
Batching means doing several pieces of work together.
A model that reads its weights once for many requests is far more efficient.
In continuous batching a new request joins as soon as another one ends.
Nobody has to wait until the whole group is done.
Larger batches need more memory.
It is one of the main reasons why a shared server is cheap.

## a server ; servers, web servers ; is
A server is a computer or a program that answers requests from others.
It waits on a port until somebody calls.
It should answer quickly, and it should say clearly when it cannot.
Logs and metrics tell its owners how it feels.
A good server stops gracefully and finishes the work it has begun.
Several servers behind one address can share the load.

## a replica ; replicas, model replicas ; is
A replica is one running copy of a service.
Several replicas share the load, and each of them can fail without stopping the others.
A router decides which replica gets the next request.
A new replica must load the model before it can answer.
When the load is low, some of them can be stopped.
All replicas should give the same kind of answer.

## a load balancer ; load balancers, load balancing, a router ; is
A load balancer is a program that shares requests among several servers.
It checks which of them are healthy.
A simple one takes the servers in turn.
A better one looks at how busy each of them is.
It can send requests with the same beginning to the same server, so that a cache is useful.
Users see a single address and never notice which server has answered.

## a cache ; caches, caching ; is
A cache is a small and fast store for things that may be needed again.
It saves time, because the answer is already there.
It must forget old things when it is full.
A common rule is to forget what was not used for the longest time.
The hard part is to know when a stored answer is no longer true.
Browsers, processors and language models all use one.

## streaming ; a stream, server sent events, streaming tokens ; is
Streaming means sending an answer in small pieces as soon as they are ready.
The reader can begin before the writer has finished.
Chat services use it so that words appear one after another.
Each piece is a small event on an open connection.
If the reader leaves, the server should stop the work.
It does not make the whole answer faster, but it feels faster.

## python ; the python language, python programming ; is
Python is a programming language that is easy to read.
It uses indentation to show which lines belong together.
It is popular for science, for the web and for small tools.
Many libraries for machine learning are written for it.
It is named after a group of comedians, not after the snake.
It was first released in 1991.

## computers ; a computer, the computer ; are
Computers are machines that follow instructions very quickly.
They store everything as zeros and ones.
A processor does the work, and memory keeps the numbers.
The first ones filled whole rooms.
Today a phone is faster than the largest computer of the past.
They do exactly what they are told, even when it is wrong.

## the internet ; internet, the web ; is
The internet is a worldwide network of computers.
Messages travel over it in small packets.
Each packet may take a different path to the same place.
Long cables on the floor of the sea join the continents.
The web is only one of the things that use it.
It began as a small project for a few universities.

## a robot ; robots ; is
A robot is a machine that can sense and act.
It has motors to move and sensors to see or feel.
Many robots work in factories and do the same task all day.
Some clean floors, and others explore the sea or Mars.
They need clear instructions and a safe space.
The word comes from a Czech play about artificial workers.

## tideserve ; Tideserve, the tideserve project, this server, this service ; is
Tideserve is a service that runs language models on Ray Serve and vLLM.
It adds replicas when many requests wait and removes them when the load is gone.
Like the tide, it rises and falls with the hours of the day.
It watches the depth of the queue and the time to first token.
It speaks the same kind of API as many other chat services.
This small model is included so that you can try it without a GPU.

## ray serve ; Ray, ray ; is
Ray Serve is a library for serving models on many machines.
It is built on Ray, which runs Python work on a cluster.
An application is made of deployments, and each of them has replicas.
It can change the number of replicas as the load changes.
Tideserve uses it to run and to scale its models.

## vllm ; vLLM, the vllm engine ; is
vLLM is an engine that runs language models quickly.
It keeps the KV cache in small blocks, so that little memory is wasted.
It works on many requests at once with continuous batching.
It can stream tokens as they are made.
It runs on GPUs, and it can also run on a CPU.
Tideserve uses it inside every replica.

## a database ; databases ; is
A database is a program that stores data in an orderly way.
Many of them keep data in tables with rows and columns.
An index helps it to find a row quickly.
A transaction is a group of changes that succeed or fail together.
Backups protect the data when a disk fails.
Asking a clear question is half of the work.

## electricity ; electric power, power ; is
Electricity is the flow of tiny charged particles.
It moves easily through metals such as copper.
Power stations make it from sun, wind, water or fuel.
It gives us light, heat and movement.
A battery stores energy and gives it back as electricity.
It is useful and dangerous, so cables must be kept safe.
"""
