%% An application's use of RabbitMQ's Erlang client, with books. It writes lines of the Test Anything Protocol; what it saw
%% is a part of a test's name, so that two brokers that show different things differ.
-mode(compile).
-include_lib("amqp_client/include/amqp_client.hrl").

main(_) ->
    logger:set_primary_config(level, none),
    {ok, _} = application:ensure_all_started(amqp_client),
    test("workers with a prefetch of 1", fun work/0),
    test("topics, returns, direct reply-to, dead letters", fun routing/0),
    test("headers of every type, and a large message", fun headers/0),
    test("what errors say", fun errors/0),
    test("a restart of the node", fun restart/0).

test(Name, Run) ->
    try Run() of
        _ -> io:format("ok - ~s~n", [Name])
    catch
        Class:Why:Stack -> io:format("not ok - ~s # ~0p~n", [Name, {Class, Why, Stack}])
    end.

seen(What, Value) ->
    io:format("ok - ~s: ~s~n", [What, string:replace(io_lib:format("~0p", [Value]), "#", " ", all)]).

open() ->
    {ok, Connection} = amqp_connection:start(#amqp_params_network{host = "127.0.0.1", heartbeat = 1}),
    {ok, Channel} = amqp_connection:open_channel(Connection),
    unlink(Connection),
    unlink(Channel),
    #'confirm.select_ok'{} = amqp_channel:call(Channel, #'confirm.select'{}),
    {Connection, Channel}.

declare(Channel, Queue, Arguments) ->
    amqp_channel:call(Channel, #'queue.delete'{queue = Queue}),
    #'queue.declare_ok'{} = amqp_channel:call(Channel, #'queue.declare'{queue = Queue, durable = true, arguments = Arguments}).

send(Channel, Exchange, Key, Properties, Body) ->
    amqp_channel:cast(Channel, #'basic.publish'{exchange = Exchange, routing_key = Key, mandatory = true}, #amqp_msg{props = Properties, payload = Body}).

get(Channel, Queue) ->
    get(Channel, Queue, 2000).

get(Channel, Queue, Tries) when Tries > 0 ->
    case amqp_channel:call(Channel, #'basic.get'{queue = Queue, no_ack = true}) of
        {#'basic.get_ok'{} = Got, Message} -> {Got, Message};
        #'basic.get_empty'{} ->
            timer:sleep(5),
            get(Channel, Queue, Tries - 1)
    end.

next(Time) ->
    receive
        #'basic.consume_ok'{} -> next(Time);
        Message -> Message
    after Time -> nothing
    end.

work() ->
    {Connection, Channel} = open(),
    declare(Channel, <<"erl.work">>, []),
    Bodies = [integer_to_binary(Number) || Number <- lists:seq(1, 100)],
    [send(Channel, <<>>, <<"erl.work">>, #'P_basic'{delivery_mode = 2}, Body) || Body <- Bodies],
    true = amqp_channel:wait_for_confirms(Channel, 10),
    {ok, Lost} = amqp_connection:open_channel(Connection),
    {ok, Second} = amqp_connection:open_channel(Connection),
    [amqp_channel:call(Each, #'basic.qos'{prefetch_count = 1}) || Each <- [Lost, Second]],
    amqp_channel:subscribe(Lost, #'basic.consume'{queue = <<"erl.work">>}, self()),
    {#'basic.deliver'{redelivered = false}, #amqp_msg{payload = Taken}} = next(5000),
    amqp_channel:subscribe(Second, #'basic.consume'{queue = <<"erl.work">>}, self()),
    Handled = handle(Second, 99, []),
    amqp_channel:close(Lost),
    {#'basic.deliver'{redelivered = true}, #amqp_msg{payload = Taken}} = next(5000),
    Bodies = lists:sort(fun(A, B) -> binary_to_integer(A) =< binary_to_integer(B) end, [Taken | Handled]),
    amqp_connection:close(Connection).

handle(_, 0, Handled) -> Handled;
handle(Channel, Left, Handled) ->
    {#'basic.deliver'{delivery_tag = Tag}, #amqp_msg{payload = Body}} = next(5000),
    amqp_channel:cast(Channel, #'basic.ack'{delivery_tag = Tag}),
    handle(Channel, Left - 1, [Body | Handled]).

routing() ->
    {Connection, Channel} = open(),
    declare(Channel, <<"erl.topic">>, []),
    amqp_channel:call(Channel, #'exchange.declare'{exchange = <<"erl.topics">>, type = <<"topic">>}),
    amqp_channel:call(Channel, #'queue.bind'{queue = <<"erl.topic">>, exchange = <<"erl.topics">>, routing_key = <<"*.jfk.#">>}),
    amqp_channel:register_return_handler(Channel, self()),
    [send(Channel, <<"erl.topics">>, Key, #'P_basic'{}, Key) || Key <- [<<"on.jfk">>, <<"on.jfk.ua">>, <<"jfk">>]],
    true = amqp_channel:wait_for_confirms(Channel, 10),
    {Return, _} = next(5000),
    seen("returned", Return),
    seen("routed", [element(1, get(Channel, <<"erl.topic">>)), element(1, get(Channel, <<"erl.topic">>))]),
    amqp_channel:subscribe(Channel, #'basic.consume'{queue = <<"amq.rabbitmq.reply-to">>, no_ack = true}, self()),
    send(Channel, <<>>, <<"erl.topic">>, #'P_basic'{reply_to = <<"amq.rabbitmq.reply-to">>, correlation_id = <<"7">>}, <<"?">>),
    {_, #amqp_msg{props = #'P_basic'{reply_to = To}}} = get(Channel, <<"erl.topic">>),
    amqp_channel:cast(Channel, #'basic.publish'{routing_key = To}, #amqp_msg{props = #'P_basic'{correlation_id = <<"7">>}, payload = <<"!">>}),
    {_, Answer} = next(5000),
    seen("answer", Answer),
    declare(Channel, <<"erl.dead">>, []),
    declare(Channel, <<"erl.ttl">>, [{<<"x-message-ttl">>, long, 50}, {<<"x-dead-letter-exchange">>, longstr, <<>>}, {<<"x-dead-letter-routing-key">>, longstr, <<"erl.dead">>}]),
    send(Channel, <<>>, <<"erl.ttl">>, #'P_basic'{headers = [{<<"a">>, long, 1}], expiration = <<"90000">>}, <<"old">>),
    {_, #amqp_msg{props = #'P_basic'{headers = Headers}}} = get(Channel, <<"erl.dead">>),
    {value, {_, array, [{table, Death}]}, Others} = lists:keytake(<<"x-death">>, 1, Headers),
    {value, {_, timestamp, Time}, Rest} = lists:keytake(<<"time">>, 1, Death),
    true = abs(os:system_time(seconds) - Time) < 60,
    seen("dead letter", {lists:sort(Others), lists:sort(Rest)}),
    amqp_connection:close(Connection).

headers() ->
    {Connection, Channel} = open(),
    declare(Channel, <<"erl.headers">>, []),
    Headers = [
        {<<"longstr">>, longstr, <<"Zürich"/utf8>>}, {<<"signedint">>, signedint, -7}, {<<"decimal">>, decimal, {2, 1999}}, {<<"timestamp">>, timestamp, 1700000000},
        {<<"table">>, table, [{<<"deep">>, table, [{<<"bool">>, bool, false}]}]}, {<<"byte">>, byte, -8}, {<<"double">>, double, 1.0e300}, {<<"float">>, float, 0.25},
        {<<"long">>, long, 1 bsl 60}, {<<"short">>, short, -300}, {<<"bool">>, bool, true}, {<<"binary">>, binary, <<0, 255>>}, {<<"void">>, void, undefined},
        {<<"unsignedbyte">>, unsignedbyte, 200}, {<<"unsignedshort">>, unsignedshort, 60000}, {<<"unsignedint">>, unsignedint, 4000000000},
        {<<"array">>, array, [{signedint, 1}, {longstr, <<"two">>}, {void, undefined}, {array, []}]}
    ],
    Properties = #'P_basic'{content_type = <<"a/b">>, content_encoding = <<"c">>, headers = Headers, delivery_mode = 2, priority = 9, correlation_id = <<"d">>,
        reply_to = <<"e">>, expiration = <<"60000">>, message_id = <<"f">>, timestamp = 1700000000, type = <<"g">>, user_id = <<"guest">>, app_id = <<"h">>, cluster_id = <<"i">>},
    send(Channel, <<>>, <<"erl.headers">>, Properties, <<"x">>),
    {_, #amqp_msg{props = Back}} = get(Channel, <<"erl.headers">>),
    seen("headers", Back#'P_basic'.headers),
    seen("properties", Back#'P_basic'{headers = []}),
    Body = binary:copy(<<"x">>, 15 bsl 20),
    send(Channel, <<>>, <<"erl.headers">>, #'P_basic'{}, Body),
    {_, #amqp_msg{payload = Body}} = get(Channel, <<"erl.headers">>),
    amqp_connection:close(Connection).

errors() ->
    {Connection, Channel} = open(),
    declare(Channel, <<"erl.errors">>, []),
    Acts = [
        {"missing queue", #'queue.declare'{queue = <<"erl.missing">>, passive = true}},
        {"other arguments", #'queue.declare'{queue = <<"erl.errors">>}},
        {"wrong type of an argument", #'queue.declare'{queue = <<"erl.other">>, durable = true, arguments = [{<<"x-max-length">>, longstr, <<"many">>}]}},
        {"reserved name", #'queue.declare'{queue = <<"amq.mine">>}},
        {"missing exchange", #'queue.bind'{queue = <<"erl.errors">>, exchange = <<"erl.missing">>}}
    ],
    lists:foreach(fun({What, Method}) ->
        {ok, Own} = amqp_connection:open_channel(Connection),
        unlink(Own),
        seen(What, try amqp_channel:call(Own, Method) catch exit:{Reason, _} -> Reason end)
    end, Acts),
    {ok, Own} = amqp_connection:open_channel(Connection),
    unlink(Own),
    Watched = monitor(process, Own),
    amqp_channel:cast(Own, #'basic.ack'{delivery_tag = 99}),
    receive {'DOWN', Watched, process, Own, Why} -> seen("unknown tag", Why) after 5000 -> error(no_close) end,
    declare(Channel, <<"erl.cancelled">>, []),
    amqp_channel:subscribe(Channel, #'basic.consume'{queue = <<"erl.cancelled">>, consumer_tag = <<"tag">>}, self()),
    {ok, Other} = amqp_connection:open_channel(Connection),
    amqp_channel:call(Other, #'queue.delete'{queue = <<"erl.cancelled">>}),
    seen("cancelled", next(5000)),
    amqp_connection:close(Connection),
    seen("wrong password", amqp_connection:start(#amqp_params_network{password = <<"no">>})),
    seen("missing vhost", amqp_connection:start(#amqp_params_network{virtual_host = <<"missing">>})).

restart() ->
    {Connection, Channel} = open(),
    declare(Channel, <<"erl.restart">>, []),
    Bodies = [integer_to_binary(Number) || Number <- lists:seq(1, 100)],
    [send(Channel, <<>>, <<"erl.restart">>, #'P_basic'{delivery_mode = 2}, Body) || Body <- Bodies],
    true = amqp_channel:wait_for_confirms(Channel, 10),
    Watched = monitor(process, Connection),
    os:cmd(os:getenv("CTL") ++ " stop-node"),
    receive {'DOWN', Watched, process, Connection, Why} -> seen("the end of the connection", Why) after 20000 -> error(no_end) end,
    os:cmd(os:getenv("CTL") ++ " start-node"),
    {Again, Reader} = open(),
    Bodies = [(element(2, get(Reader, <<"erl.restart">>)))#amqp_msg.payload || _ <- Bodies],
    amqp_connection:close(Again).
