// An application's use of amqp091-go, with books. It writes lines of the Test Anything Protocol; what it saw is a part
// of a test's name, so that two brokers that show different things differ.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"sort"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const url = "amqp://guest:guest@127.0.0.1:5672/"

var everything = context.Background()

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func that(holds bool, what string, values ...interface{}) {
	if !holds {
		panic(fmt.Sprintf(what, values...))
	}
}

func seen(what string, value interface{}) {
	text := strings.ReplaceAll(fmt.Sprintf("%v", value), "\n", " ")
	fmt.Printf("ok - %s: %s\n", what, strings.ReplaceAll(text, "#", "no. "))
}

func test(name string, run func()) {
	defer func() {
		if failed := recover(); failed != nil {
			fmt.Printf("not ok - %s # %s\n", name, strings.ReplaceAll(fmt.Sprint(failed), "\n", " "))
		} else {
			fmt.Printf("ok - %s\n", name)
		}
	}()
	run()
}

func ctl(command string) {
	output, err := exec.Command(os.Getenv("CTL"), command).CombinedOutput()
	that(err == nil, "%s: %s", command, output)
}

func declared(channel *amqp.Channel, name string, arguments amqp.Table) {
	must(channel.QueueDelete(name, false, false, false))
	must(channel.QueueDeclare(name, true, false, false, false, arguments))
}

func open() (*amqp.Connection, *amqp.Channel) {
	connection := must(amqp.DialConfig(url, amqp.Config{Heartbeat: time.Second, Properties: amqp.Table{"connection_name": "go"}}))
	channel := must(connection.Channel())
	check(channel.Confirm(false))
	return connection, channel
}

func send(channel *amqp.Channel, exchange, key string, message amqp.Publishing) bool {
	confirm := must(channel.PublishWithDeferredConfirmWithContext(everything, exchange, key, true, false, message))
	return confirm.Wait()
}

func get(channel *amqp.Channel, queue string) (found amqp.Delivery) {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		message, ok, err := channel.Get(queue, true)
		check(err)
		if ok {
			return message
		}
	}
	panic("no message in " + queue)
}

func work() {
	connection, channel := open()
	defer connection.Close()
	declared(channel, "go.work", nil)
	for number := 0; number < 100; number++ {
		that(send(channel, "", "go.work", amqp.Publishing{Body: []byte(fmt.Sprint(number)), DeliveryMode: 2}), "nacked")
	}
	handled := map[string]int{}
	lost, second := must(connection.Channel()), must(connection.Channel())
	check(lost.Qos(1, 0, false))
	check(second.Qos(1, 0, false))
	first := <-must(lost.Consume("go.work", "", false, false, false, false, nil))
	messages := must(second.Consume("go.work", "", false, false, false, false, nil))
	redelivered := false
	for len(handled) < 100 {
		if len(handled) == 10 {
			lost.Close()
		}
		message := <-messages
		redelivered = redelivered || message.Redelivered && string(message.Body) == string(first.Body)
		handled[string(message.Body)]++
		check(message.Ack(false))
	}
	for body, times := range handled {
		that(times == 1, "%s came %d times", body, times)
	}
	that(redelivered, "what was lost came without the mark")
}

func routing() {
	connection, channel := open()
	defer connection.Close()
	declared(channel, "go.topic", nil)
	check(channel.ExchangeDeclare("go.topics", "topic", false, true, false, false, nil))
	check(channel.QueueBind("go.topic", "*.jfk.#", "go.topics", false, nil))
	returns := channel.NotifyReturn(make(chan amqp.Return, 10))
	for _, key := range []string{"on.jfk", "on.jfk.ua", "jfk"} {
		that(send(channel, "go.topics", key, amqp.Publishing{Body: []byte(key)}), "nacked")
	}
	seen("routed", []string{get(channel, "go.topic").RoutingKey, get(channel, "go.topic").RoutingKey})
	back := <-returns
	seen("returned", []interface{}{back.ReplyCode, back.ReplyText, back.Exchange, back.RoutingKey, string(back.Body)})
	replies := must(channel.Consume("amq.rabbitmq.reply-to", "", true, false, false, false, nil))
	send(channel, "", "go.topic", amqp.Publishing{ReplyTo: "amq.rabbitmq.reply-to", CorrelationId: "7", Body: []byte("?")})
	asked := get(channel, "go.topic")
	that(send(channel, "", asked.ReplyTo, amqp.Publishing{CorrelationId: asked.CorrelationId, Body: []byte("!")}), "nacked")
	answer := <-replies
	seen("answer", answer.CorrelationId+string(answer.Body))
}

func deadLetters() {
	connection, channel := open()
	defer connection.Close()
	declared(channel, "go.dead", nil)
	declared(channel, "go.ttl", amqp.Table{"x-message-ttl": int32(50), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "go.dead"})
	that(send(channel, "", "go.ttl", amqp.Publishing{Body: []byte("old"), Expiration: "100000", Headers: amqp.Table{"a": int32(1)}}), "nacked")
	dead := get(channel, "go.dead")
	death := dead.Headers["x-death"].([]interface{})[0].(amqp.Table)
	that(time.Since(death["time"].(time.Time)) < time.Minute, "the time of death is %v", death["time"])
	delete(death, "time")
	seen("dead letter", dead.Headers)
}

func headers() {
	connection, channel := open()
	defer connection.Close()
	declared(channel, "go.headers", nil)
	sent := amqp.Table{
		"bool": true, "byte": byte(200), "int8": int8(-8), "int16": int16(-300), "int32": int32(-70000), "int64": int64(1) << 60,
		"float32": float32(0.25), "float64": 1e300, "nil": nil, "string": "Zürich", "time": time.Unix(1700000000, 0),
		"decimal": amqp.Decimal{Scale: 2, Value: 1999}, "table": amqp.Table{"deep": amqp.Table{"list": []interface{}{int32(1), "two", nil}}},
		"bytes": []byte{0, 255, 128}, "list": []interface{}{true, amqp.Table{}},
	}
	message := amqp.Publishing{Headers: sent, ContentType: "a/b", ContentEncoding: "c", DeliveryMode: 1, Priority: 9, CorrelationId: "d",
		ReplyTo: "e", Expiration: "60000", MessageId: "f", Timestamp: time.Unix(1700000000, 0), Type: "g", UserId: "guest", AppId: "h"}
	that(send(channel, "", "go.headers", message), "nacked")
	back := get(channel, "go.headers")
	that(reflect.DeepEqual(back.Headers, sent), "other headers: %v", back.Headers)
	seen("types", fmt.Sprintf("%T %T %T %T %T", back.Headers["byte"], back.Headers["int8"], back.Headers["int16"], back.Headers["bytes"], back.Headers["decimal"]))
	back.Acknowledger, back.Headers = nil, nil
	seen("properties", back)
	body := bytes.Repeat([]byte("x"), 15<<20)
	that(send(channel, "", "go.headers", amqp.Publishing{Body: body}), "nacked")
	that(bytes.Equal(get(channel, "go.headers").Body, body), "another body")
}

func failures() {
	connection, channel := open()
	defer connection.Close()
	declared(channel, "go.errors", nil)
	refused := func(what string, act func(*amqp.Channel) error) {
		own := must(connection.Channel())
		closed := own.NotifyClose(make(chan *amqp.Error, 1))
		err := act(own)
		if err == nil {
			select {
			case told := <-closed:
				err = told
			case <-time.After(5 * time.Second):
			}
		}
		seen(what, err)
	}
	refused("missing queue", func(own *amqp.Channel) error { _, err := own.QueueInspect("go.missing"); return err })
	refused("other arguments", func(own *amqp.Channel) error {
		_, err := own.QueueDeclare("go.errors", true, false, false, false, amqp.Table{"x-max-length": int32(1)})
		return err
	})
	refused("argument of a wrong type", func(own *amqp.Channel) error {
		_, err := own.QueueDeclare("go.other", true, false, false, false, amqp.Table{"x-message-ttl": "soon"})
		return err
	})
	refused("missing exchange", func(own *amqp.Channel) error {
		return own.PublishWithContext(everything, "go.missing", "", false, false, amqp.Publishing{})
	})
	refused("unknown delivery tag", func(own *amqp.Channel) error { return own.Ack(9, false) })
	refused("consumer of a missing queue", func(own *amqp.Channel) error {
		_, err := own.Consume("go.missing", "", false, false, false, false, nil)
		return err
	})
	refused("flow", func(own *amqp.Channel) error { return own.Flow(true) })
	for _, bad := range []string{"amqp://guest:no@127.0.0.1:5672/", url + "missing"} {
		_, err := amqp.Dial(bad)
		seen(bad, err)
	}
	must(amqp.Dial(url)).Close()
}

func cancelled() {
	connection, channel := open()
	defer connection.Close()
	declared(channel, "go.cancelled", nil)
	told := channel.NotifyCancel(make(chan string, 1))
	messages := must(channel.Consume("go.cancelled", "tag", false, false, false, false, nil))
	must(must(connection.Channel()).QueueDelete("go.cancelled", false, false, false))
	seen("cancelled", <-told)
	_, more := <-messages
	that(!more, "a message of a deleted queue")
}

func restart() {
	connection, channel := open()
	declared(channel, "go.restart", nil)
	confirmed := []string{}
	count := func(most int) (err error) {
		for number := 0; number < most && err == nil; number++ {
			body := fmt.Sprint(len(confirmed), ".", time.Now().UnixNano())
			var confirm *amqp.DeferredConfirmation
			confirm, err = channel.PublishWithDeferredConfirmWithContext(everything, "", "go.restart", true, false, amqp.Publishing{Body: []byte(body), DeliveryMode: 2})
			if err == nil && confirm.Wait() {
				confirmed = append(confirmed, body)
			}
		}
		return err
	}
	check(count(100))
	closed := connection.NotifyClose(make(chan *amqp.Error, 1))
	ctl("stop-node")
	seen("the end of the connection", <-closed)
	_, err := amqp.Dial(url)
	that(err != nil, "a stopped node answers")
	ctl("start-node")
	connection, channel = open()
	defer connection.Close()
	check(count(100))
	found := map[string]bool{}
	for {
		message, ok, err := channel.Get("go.restart", true)
		check(err)
		if !ok {
			break
		}
		found[string(message.Body)] = true
	}
	missing := []string{}
	for _, body := range confirmed {
		if !found[body] {
			missing = append(missing, body)
		}
	}
	sort.Strings(missing)
	that(len(missing) == 0, "%v", errors.New(strings.Join(missing, " ")))
}

func main() {
	test("workers with a prefetch of 1", work)
	test("topics, returns, direct reply-to", routing)
	test("dead letters", deadLetters)
	test("headers of every type, and a large message", headers)
	test("what errors say", failures)
	test("a consumer is told of its queue's end", cancelled)
	test("an idle connection with heartbeats of a second", func() {
		connection, channel := open()
		time.Sleep(3500 * time.Millisecond)
		must(channel.QueueInspect("go.work"))
		check(connection.Close())
	})
	test("a restart of the node", restart)
}
